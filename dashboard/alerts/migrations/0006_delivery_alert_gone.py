from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("alerts", "0005_fill_digests")]

    operations = [
        migrations.RemoveConstraint(model_name="delivery", name="one_delivery_per_channel"),
        migrations.RemoveField(model_name="delivery", name="alert"),
    ]
