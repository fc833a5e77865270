from django.db import migrations

FILL = """
    UPDATE runs_run run SET steps_run = coalesce(
        (SELECT max(step) - min(step) + 1 FROM runs_steprecord WHERE run_id = run.id),
        CASE WHEN newest.last_step IS NOT NULL THEN greatest(1, newest.last_step) END,
        (SELECT max(step.position) + 1 FROM runs_rankstep step JOIN runs_dump dump ON dump.id = step.dump_id
         WHERE dump.capture_id = newest.id),
        1)
    FROM (
        SELECT DISTINCT ON (run_id) run_id, id, last_step FROM runs_capture WHERE state = 'ready'
        ORDER BY run_id, captured_at DESC, id DESC
    ) newest
    WHERE newest.run_id = run.id
"""


class Migration(migrations.Migration):

    dependencies = [
        ("runs", "0019_steps_run"),
    ]

    operations = [
        migrations.RunSQL(FILL, migrations.RunSQL.noop),
    ]
