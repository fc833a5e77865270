from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('runs', '0001_initial'),
    ]

    operations = [
        migrations.AddField(
            model_name='dump',
            name='excess_ns',
            field=models.BigIntegerField(blank=True, help_text='What it costs the others, per step', null=True),
        ),
        migrations.AddField(
            model_name='dump',
            name='slow',
            field=models.BooleanField(blank=True, help_text='Null: there was no other rank to compare with', null=True),
        ),
        migrations.AddField(
            model_name='dump',
            name='slow_kind',
            field=models.CharField(blank=True, max_length=10),
        ),
        migrations.AddIndex(
            model_name='dump',
            index=models.Index(condition=models.Q(('slow', True)), fields=['host', 'device_id'], name='dumps_slow_by_card'),
        ),
        migrations.AddIndex(
            model_name='dump',
            index=models.Index(condition=models.Q(('slow__isnull', False)), fields=['host', 'device_id'], name='dumps_by_card'),
        ),
    ]
