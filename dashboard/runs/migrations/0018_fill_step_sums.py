from django.db import migrations

FIELDS = ("loss", "global_norm", "step_time_ns", "tflops_per_device", "lr")
FILL = f"""
    INSERT INTO runs_stepsums (run_id, block, first_step, {", ".join(f"{name}_sum, {name}_count" for name in FIELDS)})
    SELECT run_id, step / 20, min(step), {", ".join(f"sum({name}::float8), count({name})" for name in FIELDS)}
    FROM runs_steprecord GROUP BY run_id, step / 20
"""


class Migration(migrations.Migration):
    dependencies = [("runs", "0017_step_sums")]
    operations = [migrations.RunSQL(FILL, migrations.RunSQL.noop)]
