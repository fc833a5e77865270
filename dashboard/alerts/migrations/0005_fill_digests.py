from django.apps.registry import Apps
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.models import F


def fill(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """A notice was of one alert; without one it was a test."""
    delivery = apps.get_model("alerts", "Delivery")
    delivery.objects.filter(alert=None).update(is_test=True)
    pair = delivery.alerts.through
    rows = delivery.objects.exclude(alert=None).values_list("pk", "alert_id")
    pair.objects.bulk_create(
        (pair(delivery_id=one, alert_id=alert) for one, alert in rows.iterator()), batch_size=2000, ignore_conflicts=True
    )


def empty(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """Back to the first alert of each notice."""
    delivery = apps.get_model("alerts", "Delivery")
    for one in delivery.objects.exclude(alerts=None).annotate(first=F("alerts")).iterator():
        delivery.objects.filter(pk=one.pk).update(alert=one.first)


class Migration(migrations.Migration):
    dependencies = [("alerts", "0004_rules_and_digests")]

    operations = [migrations.RunPython(fill, empty)]
