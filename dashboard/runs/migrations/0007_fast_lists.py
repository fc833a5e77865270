import django.contrib.postgres.indexes
import django.db.models.deletion
import django.db.models.functions.text
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('runs', '0006_fill_result_run'),
    ]

    operations = [
        migrations.AlterField(
            model_name='checklistresult',
            name='run',
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='checklist', to='runs.run'),
        ),
        migrations.AddIndex(
            model_name='checklistresult',
            index=models.Index(models.OrderBy(models.F('lost_ns'), descending=True, nulls_last=True), models.OrderBy(models.F('id'), descending=True), condition=models.Q(('latest', True), ('status', 'fail')), include=('run', 'item'), name='open_violations'),
        ),
        migrations.AddIndex(
            model_name='capture',
            index=models.Index(fields=['-captured_at', '-id'], name='captures_by_time'),
        ),
        migrations.AddIndex(
            model_name='capture',
            index=django.contrib.postgres.indexes.GinIndex(django.contrib.postgres.indexes.OpClass(django.db.models.functions.text.Upper('key'), name='gin_trgm_ops'), name='captures_key_trgm'),
        ),
        migrations.AddIndex(
            model_name='dump',
            index=models.Index(condition=models.Q(('state', 'digested'), _negated=True), fields=['capture'], name='dumps_underway'),
        ),
        migrations.RemoveIndex(
            model_name='run',
            name='runs_name_trgm',
        ),
        migrations.AddIndex(
            model_name='run',
            index=django.contrib.postgres.indexes.GinIndex(django.contrib.postgres.indexes.OpClass(django.db.models.functions.text.Upper('name'), name='gin_trgm_ops'), name='runs_name_trgm'),
        ),
        migrations.AddIndex(
            model_name='run',
            index=django.contrib.postgres.indexes.GinIndex(django.contrib.postgres.indexes.OpClass(django.db.models.functions.text.Upper('key'), name='gin_trgm_ops'), name='runs_key_trgm'),
        ),
        migrations.AddIndex(
            model_name='run',
            index=django.contrib.postgres.indexes.GinIndex(django.contrib.postgres.indexes.OpClass(django.db.models.functions.text.Upper('model_name'), name='gin_trgm_ops'), name='runs_model_name_trgm'),
        ),
    ]
