import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ("runs", "0008_assignment"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.AlterField("checklistresult", "lost_ns", models.FloatField(null=True)),
        migrations.AddField(
            "waiver",
            "given_by",
            models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name="+",
                              to=settings.AUTH_USER_MODEL),
        ),
    ]
