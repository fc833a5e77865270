from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("alerts", "0001_initial")]

    operations = [
        migrations.AlterField("alert", "new_value", models.FloatField(null=True)),
    ]
