from django.db import migrations

FILL = """
    UPDATE runs_checklistresult result
    SET lost_ns = result.recoverable_ns * coalesce(run.world_size, 1)::float * coalesce(
        (SELECT max(step) - min(step) + 1 FROM runs_steprecord WHERE run_id = run.id),
        CASE WHEN capture.last_step IS NOT NULL THEN greatest(1, capture.last_step) END,
        (SELECT max(step.position) + 1 FROM runs_rankstep step JOIN runs_dump dump ON dump.id = step.dump_id
         WHERE dump.capture_id = capture.id),
        1)
    FROM runs_capture capture JOIN runs_run run ON run.id = capture.run_id
    WHERE capture.id = result.capture_id AND result.latest
"""


class Migration(migrations.Migration):

    dependencies = [
        ("runs", "0009_cost_of_violations"),
    ]

    operations = [
        migrations.RunSQL(FILL, migrations.RunSQL.noop),
    ]
