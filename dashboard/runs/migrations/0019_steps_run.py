from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ("runs", "0018_fill_step_sums"),
    ]

    operations = [
        migrations.AddField(
            model_name="run",
            name="steps_run",
            field=models.BigIntegerField(blank=True, null=True),
        ),
    ]
