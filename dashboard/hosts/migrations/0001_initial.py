import django.core.validators
import django.db.models.deletion
import django.utils.timezone
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
        ('accounts', '0002_peak_help'),
        ('runs', '0002_slow_ranks'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name='Agent',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('uid', models.CharField(help_text='What the agent calls itself; stays when its host is renamed', max_length=100)),
                ('host', models.CharField(max_length=200)),
                ('version', models.CharField(blank=True, max_length=40)),
                ('npus', models.JSONField(blank=True, default=list, help_text='[{id, chip, serial, health}]')),
                ('driver', models.CharField(blank=True, max_length=60)),
                ('spool', models.JSONField(blank=True, default=dict, help_text='Number of dumps by state')),
                ('trouble', models.TextField(blank=True)),
                ('first_seen', models.DateTimeField(default=django.utils.timezone.now)),
                ('last_seen', models.DateTimeField(default=django.utils.timezone.now)),
                ('project', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='agents', to='accounts.project')),
            ],
            options={
                'ordering': ['host', 'uid'],
            },
        ),
        migrations.CreateModel(
            name='AgentRun',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('step', models.BigIntegerField(null=True)),
                ('via', models.CharField(blank=True, help_text='How a capture can be made: callback or dynamic', max_length=10)),
                ('first_seen', models.DateTimeField(default=django.utils.timezone.now)),
                ('last_seen', models.DateTimeField(default=django.utils.timezone.now)),
                ('agent', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='runs', to='hosts.agent')),
                ('run', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='agents', to='runs.run')),
            ],
        ),
        migrations.CreateModel(
            name='CaptureRequest',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('kind', models.CharField(choices=[('next', 'The next steps'), ('steps', 'From a step on')], default='next', max_length=5)),
                ('first_step', models.BigIntegerField(blank=True, help_text='Asked for, or for the next steps settled by the first agent that accepts', null=True, validators=[django.core.validators.MinValueValidator(1), django.core.validators.MaxValueValidator(9007199254740992)])),
                ('steps', models.IntegerField(default=3, validators=[django.core.validators.MinValueValidator(1), django.core.validators.MaxValueValidator(20)])),
                ('ranks', models.JSONField(blank=True, help_text='null: the callback\'s own choice; "all"; or a list', null=True)),
                ('level', models.CharField(choices=[('Level0', 'Level0'), ('Level1', 'Level1'), ('Level2', 'Level2')], default='Level1', max_length=10)),
                ('state', models.CharField(choices=[('requested', 'Requested'), ('accepted', 'Accepted'), ('collecting', 'Collecting'), ('uploaded', 'Uploaded'), ('failed', 'Failed'), ('expired', 'Expired')], default='requested', max_length=10)),
                ('reason', models.TextField(blank=True)),
                ('created', models.DateTimeField(default=django.utils.timezone.now)),
                ('accepted', models.DateTimeField(null=True)),
                ('collecting', models.DateTimeField(null=True)),
                ('ended', models.DateTimeField(null=True)),
                ('agent', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='requests', to='hosts.agent')),
                ('asked_by', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('capture', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='runs.capture')),
                ('run', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='capture_requests', to='runs.run')),
            ],
            options={
                'ordering': ['-id'],
            },
        ),
        migrations.AddConstraint(
            model_name='agent',
            constraint=models.UniqueConstraint(fields=('project', 'uid'), name='one_agent_per_uid'),
        ),
        migrations.AddConstraint(
            model_name='agentrun',
            constraint=models.UniqueConstraint(fields=('agent', 'run'), name='one_row_per_agent_and_run'),
        ),
        migrations.AddIndex(
            model_name='capturerequest',
            index=models.Index(fields=['run', '-id'], name='requests_of_run'),
        ),
        migrations.AddConstraint(
            model_name='capturerequest',
            constraint=models.UniqueConstraint(condition=models.Q(('state__in', ('requested', 'accepted', 'collecting'))), fields=('run',), name='one_open_request_per_run'),
        ),
    ]
