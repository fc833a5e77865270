from django.db import migrations

FILL = """
    UPDATE runs_checklistresult result
    SET run_id = capture.run_id,
        lost_ns = CASE WHEN result.latest THEN result.recoverable_ns * coalesce(run.world_size, 1) END
    FROM runs_capture capture JOIN runs_run run ON run.id = capture.run_id
    WHERE capture.id = result.capture_id
"""


class Migration(migrations.Migration):

    dependencies = [
        ('runs', '0005_result_run'),
    ]

    operations = [
        migrations.RunSQL(FILL, migrations.RunSQL.noop),
    ]
