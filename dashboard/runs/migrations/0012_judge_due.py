from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("runs", "0011_dump_stage")]

    operations = [
        migrations.AddField(
            model_name="capture",
            name="judge_due",
            field=models.DateTimeField(
                blank=True,
                help_text="When the alert rules look at it; empty: they have, or it is not ready",
                null=True,
            ),
        ),
        migrations.AddIndex(
            model_name="capture",
            index=models.Index(
                condition=models.Q(("judge_due__isnull", False)), fields=["judge_due"], name="captures_to_judge"
            ),
        ),
    ]
