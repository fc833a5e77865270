import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('runs', '0004_saved_view'),
    ]

    operations = [
        migrations.AddField(
            model_name='checklistresult',
            name='run',
            field=models.ForeignKey(null=True, on_delete=django.db.models.deletion.CASCADE, related_name='checklist', to='runs.run'),
        ),
        migrations.AddField(
            model_name='checklistresult',
            name='lost_ns',
            field=models.BigIntegerField(null=True),
        ),
    ]
