from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("runs", "0010_fill_cost_of_violations")]

    operations = [
        migrations.AddField(
            model_name="dump",
            name="stage",
            field=models.CharField(
                blank=True, help_text="What its analysis is at, while digesting", max_length=20, default=""
            ),
            preserve_default=False,
        ),
    ]
