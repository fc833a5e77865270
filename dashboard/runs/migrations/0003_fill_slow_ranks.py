from django.db import migrations

FILL = """
    UPDATE runs_dump d
    SET slow = s.kind IS NOT NULL, slow_kind = coalesce(left(s.kind, 10), ''), excess_ns = s.excess_ns
    FROM (
        SELECT d.id, r.row->>'kind' AS kind, round((r.row->>'excess_us')::numeric * 1000)::bigint AS excess_ns
        FROM runs_dump d JOIN runs_capture c ON c.id = d.capture_id
        LEFT JOIN LATERAL (
            SELECT row FROM jsonb_array_elements(c.report->'cluster'->'slow_ranks') AS row
            WHERE (row->>'rank')::int = d.rank LIMIT 1
        ) r ON true
        WHERE d.state = 'digested' AND c.rank_count > 1
          AND jsonb_typeof(c.report->'cluster'->'slow_ranks') = 'array'
    ) s
    WHERE s.id = d.id
"""


class Migration(migrations.Migration):
    """What roll-ups before this one found stands in their reports."""

    dependencies = [("runs", "0002_slow_ranks")]
    operations = [migrations.RunSQL(FILL, migrations.RunSQL.noop)]
