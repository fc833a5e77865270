import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("runs", "0012_judge_due")]

    operations = [
        migrations.AddField(
            model_name="dump",
            name="origin",
            field=models.ForeignKey(
                blank=True,
                help_text="The dump in whose files this rank was found as another device; empty: it was sent itself",
                null=True,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="others",
                to="runs.dump",
            ),
        ),
    ]
