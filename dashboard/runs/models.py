"""Runs, their captures and dumps, and the numbers that pages filter and sort by.

Nothing here is finer than run x rank x step; kernels are Parquet files. Times are integer nanoseconds.
Null means unknown.
"""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import GinIndex, OpClass
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now, Upper
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from dashboard.accounts.models import Project, User, key_validator


class Metrics(models.Model):
    """What a capture measured. A run carries a copy of its newest ready capture's, so that a run list is one query."""

    step_time_ns = models.BigIntegerField(null=True, blank=True)
    step_time_source = models.CharField(max_length=60, blank=True)
    mfu = models.FloatField(null=True, blank=True)
    hfu = models.FloatField(null=True, blank=True)
    tflops_per_device = models.FloatField(null=True, blank=True)
    peak_tflops = models.FloatField(null=True, blank=True)
    peak_dtype = models.CharField(max_length=20, blank=True)
    peak_source = models.CharField(max_length=100, blank=True)
    flops_formula = models.CharField(max_length=60, blank=True)
    device_ratio = models.FloatField(null=True, blank=True)
    compute_ratio = models.FloatField(null=True, blank=True)
    exposed_communication_ratio = models.FloatField(null=True, blank=True)
    cast_ratio = models.FloatField(null=True, blank=True)
    movement_ratio = models.FloatField(null=True, blank=True)
    peak_memory_bytes = models.BigIntegerField(null=True, blank=True)
    verdict = models.CharField(max_length=30, blank=True)
    checklist_passed = models.IntegerField(null=True, blank=True)
    checklist_failed = models.IntegerField(null=True, blank=True)
    checklist_unknown = models.IntegerField(null=True, blank=True)
    recoverable_ns = models.BigIntegerField(
        null=True, blank=True, help_text=_("Union of what the findings would win, per step")
    )

    class Meta:
        abstract = True


METRIC_FIELDS = [field.name for field in Metrics._meta.local_fields]


class RunQuerySet(models.QuerySet["Run"]):
    def visible_to(self, user: User) -> RunQuerySet:
        """Runs of the projects that `user` is a member of."""
        return self if user.is_superuser else self.filter(project__members__user=user)


class Run(Metrics):
    project = models.ForeignKey(Project, models.CASCADE, related_name="runs")
    key = models.CharField(max_length=100, validators=[key_validator])
    name = models.CharField(max_length=200)
    created = models.DateTimeField(auto_now_add=True)
    archived = models.BooleanField(default=False)
    is_reference = models.BooleanField(
        default=False, help_text=_("The run that precision_regression compares the project's others with")
    )
    tags = ArrayField(models.CharField(max_length=40), default=list, blank=True)

    # Identity and environment, from the agent's metadata, the dumps and the config.
    framework = models.CharField(max_length=20, blank=True)
    framework_version = models.CharField(max_length=60, blank=True)
    cann_version = models.CharField(max_length=60, blank=True)
    soc = models.CharField(max_length=40, blank=True)
    mode = models.CharField(max_length=10, blank=True)
    jit_level = models.CharField(max_length=10, blank=True)
    sink = models.BooleanField(null=True, blank=True)
    model_name = models.CharField(max_length=100, blank=True)
    world_size = models.IntegerField(null=True, blank=True)
    dp = models.IntegerField(null=True, blank=True)
    tp = models.IntegerField(null=True, blank=True)
    pp = models.IntegerField(null=True, blank=True)
    cp = models.IntegerField(null=True, blank=True)
    ep = models.IntegerField(null=True, blank=True)
    meta = models.JSONField(default=dict, blank=True)
    config_name = models.CharField(max_length=200, blank=True)
    config_text = models.TextField(blank=True)
    config_fingerprint = models.CharField(max_length=64, blank=True)

    # Kept up by roll-up.
    last_capture_at = models.DateTimeField(null=True, blank=True)
    capture_count = models.IntegerField(default=0)
    steps_run = models.BigIntegerField(null=True, blank=True)  # that it is known to have made; see rollup.steps_run
    sparkline = ArrayField(
        models.FloatField(null=True), default=list, blank=True, help_text=_("Step time in ms, at most 60 points")
    )
    spark_metric = models.CharField(max_length=30, blank=True)

    objects = RunQuerySet.as_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["project", "key"], name="one_run_per_key"),
            models.UniqueConstraint(
                fields=["project"], condition=Q(is_reference=True), name="one_reference_per_project"
            ),
        ]
        indexes = [
            models.Index("project", F("last_capture_at").desc(nulls_last=True), F("id").desc(), name="runs_by_capture"),
            *[
                models.Index("project", F(name).desc(nulls_last=True), F("id").desc(), name=f"runs_by_{name[:20]}")
                for name in (
                    "step_time_ns",
                    "mfu",
                    "device_ratio",
                    "cast_ratio",
                    "peak_memory_bytes",
                    "checklist_failed",
                )
            ],
            # Upper: what icontains compares.
            *[
                GinIndex(OpClass(Upper(name), "gin_trgm_ops"), name=f"runs_{name}_trgm")
                for name in ("name", "key", "model_name")
            ],
            GinIndex(fields=["tags"], name="runs_tags"),
            # Filter values and counts of the run list, without a look at the wide rows themselves.
            models.Index(
                fields=[
                    "project",
                    "archived",
                    "framework",
                    "model_name",
                    "soc",
                    "mode",
                    "cann_version",
                    "framework_version",
                    "world_size",
                    "verdict",
                ],
                name="runs_facets",
            ),
            models.Index(fields=["id"], include=["project"], condition=Q(archived=False), name="runs_shown"),
            models.Index(
                fields=["project", "model_name", "-last_capture_at", "-id"],
                condition=Q(archived=False, last_capture_at__isnull=False),
                name="runs_newest_of_model",
            ),
        ]

    def __str__(self) -> str:
        return self.name

    def get_absolute_url(self) -> str:
        return reverse("runs:run", args=[self.pk])


class CaptureState(models.TextChoices):
    RECEIVING = "receiving", _("Receiving")
    DIGESTING = "digesting", _("Analysing")
    READY = "ready", _("Ready")
    FAILED = "failed", _("Failed")


class CaptureQuerySet(models.QuerySet["Capture"]):
    def visible_to(self, user: User) -> CaptureQuerySet:
        return self if user.is_superuser else self.filter(run__project__members__user=user)


class Capture(Metrics):
    """One profiled window of a run, over all the ranks that sent it."""

    run = models.ForeignKey(Run, models.CASCADE, related_name="captures")
    key = models.CharField(max_length=100, validators=[key_validator])
    state = models.CharField(max_length=10, choices=CaptureState.choices, default=CaptureState.RECEIVING)
    created = models.DateTimeField(auto_now_add=True)
    captured_at = models.DateTimeField(default=timezone.now)
    first_step = models.BigIntegerField(null=True, blank=True)
    last_step = models.BigIntegerField(null=True, blank=True)
    rank_count = models.IntegerField(default=0)
    world_size = models.IntegerField(null=True, blank=True)
    config_fingerprint = models.CharField(max_length=64, blank=True)
    cann_version = models.CharField(max_length=60, blank=True)
    framework_version = models.CharField(max_length=60, blank=True)
    rollup_due = models.BooleanField(default=False)
    rolled_up = models.DateTimeField(null=True, blank=True)
    judge_due = models.DateTimeField(
        null=True, blank=True, help_text=_("When the alert rules look at it; empty: they have, or it is not ready")
    )
    error = models.TextField(blank=True)
    report = models.JSONField(
        default=dict, blank=True, help_text=_("The report without ranks and series; ranks are on the dumps")
    )

    objects = CaptureQuerySet.as_manager()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["run", "key"], name="one_capture_per_key")]
        indexes = [
            models.Index(fields=["run", "-captured_at", "-id"], include=["state"], name="captures_of_run"),
            models.Index(fields=["-captured_at", "-id"], name="captures_by_time"),
            GinIndex(OpClass(Upper("key"), "gin_trgm_ops"), name="captures_key_trgm"),
            models.Index(fields=["id"], condition=Q(rollup_due=True), name="captures_due"),
            models.Index(fields=["judge_due"], condition=Q(judge_due__isnull=False), name="captures_to_judge"),
        ]

    def __str__(self) -> str:
        return f"{self.run} / {self.key}"

    def get_absolute_url(self) -> str:
        return reverse("runs:capture", args=[self.pk])


class DumpState(models.TextChoices):
    RECEIVING = "receiving", _("Receiving")
    UPLOADED = "uploaded", _("Waiting")
    DIGESTING = "digesting", _("Analysing")
    DIGESTED = "digested", _("Ready")
    FAILED = "failed", _("Failed")


STAGES = {
    "reading": _("Reading files"),
    "layers": _("Finding layers"),
    "sums": _("Summing up"),
    "writing": _("Writing tables"),
}
"""What the analysis of a dump tells that it is at."""


class DumpManager(models.Manager["Dump"]):
    def claim(self, dump_id: int) -> bool:
        """Take an uploaded dump for digesting; True for the one worker that got it."""
        return bool(
            self.filter(pk=dump_id, state=DumpState.UPLOADED).update(
                state=DumpState.DIGESTING,
                attempts=F("attempts") + 1,
                claimed_at=Now(),
                heartbeat=Now(),
                progress=0,
                stage="",
                error="",
            )
        )


class Dump(models.Model):
    """One rank's profiler output for one window."""

    capture = models.ForeignKey(Capture, models.CASCADE, related_name="dumps")
    rank = models.IntegerField()
    device_id = models.IntegerField(null=True, blank=True)
    origin = models.ForeignKey(
        "self",
        models.CASCADE,
        null=True,
        blank=True,
        related_name="others",
        help_text=_("The dump in whose files this rank was found as another device; empty: it was sent itself"),
    )
    host = models.CharField(max_length=200, blank=True)
    folder = models.CharField(max_length=300, blank=True)
    framework = models.CharField(max_length=20, blank=True)
    files = models.JSONField(default=list, help_text=_("[{name, size, sha256}] as announced"))
    files_sha256 = models.CharField(
        max_length=64, help_text=_("Hash over the sorted manifest, tells a repeated announcement from a new one")
    )
    size_bytes = models.BigIntegerField(default=0)
    state = models.CharField(max_length=10, choices=DumpState.choices, default=DumpState.RECEIVING)
    progress = models.FloatField(
        default=0, help_text=_("0 to 1, of receiving while receiving, of digesting while digesting")
    )
    stage = models.CharField(max_length=20, blank=True, help_text=_("What its analysis is at, while digesting"))
    attempts = models.IntegerField(default=0)
    error = models.TextField(blank=True)
    created = models.DateTimeField(auto_now_add=True)
    uploaded_at = models.DateTimeField(null=True, blank=True)
    claimed_at = models.DateTimeField(null=True, blank=True)
    heartbeat = models.DateTimeField(null=True, blank=True, help_text=_("Last sign of the worker that digests it"))
    digested_at = models.DateTimeField(null=True, blank=True)
    frames = models.CharField(
        max_length=80, blank=True, help_text=_("Name of the folder with its Parquet files, a fresh one per digest")
    )
    entry = models.JSONField(default=dict, blank=True, help_text=_("Its element of the report's ranks"))
    source = models.JSONField(default=dict, blank=True)

    # What rank grids and lists sort by.
    step_time_ns = models.BigIntegerField(null=True, blank=True)
    computing_ns = models.BigIntegerField(null=True, blank=True)
    communication_not_overlapped_ns = models.BigIntegerField(null=True, blank=True)
    free_ns = models.BigIntegerField(null=True, blank=True)
    device_ratio = models.FloatField(null=True, blank=True)
    cast_ratio = models.FloatField(null=True, blank=True)

    # What the roll-up found of it among its capture's ranks; the ledger of cards counts over these.
    slow = models.BooleanField(null=True, blank=True, help_text=_("Null: there was no other rank to compare with"))
    slow_kind = models.CharField(max_length=10, blank=True)
    excess_ns = models.BigIntegerField(null=True, blank=True, help_text=_("What it costs the others, per step"))

    objects = DumpManager()

    class Meta:
        ordering = ["rank"]
        constraints = [models.UniqueConstraint(fields=["capture", "rank"], name="one_dump_per_rank")]
        indexes = [
            models.Index(fields=["state", "heartbeat"], name="dumps_by_state"),
            models.Index(fields=["host", "device_id"], condition=Q(slow=True), name="dumps_slow_by_card"),
            models.Index(fields=["host", "device_id"], condition=Q(slow__isnull=False), name="dumps_by_card"),
            models.Index(fields=["capture"], condition=~Q(state="digested"), name="dumps_underway"),
            models.Index(
                fields=["digested_at"],
                include=["claimed_at"],
                condition=Q(digested_at__isnull=False),
                name="dumps_by_digest",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.capture} rank {self.rank}"

    @property
    def stage_name(self) -> str:
        """In words, while it is digested; else empty."""
        return str(STAGES.get(self.stage, "")) if self.state == DumpState.DIGESTING else ""


class RankStep(models.Model):
    """One step of one rank, the columns of step_trace_time.csv."""

    dump = models.ForeignKey(Dump, models.CASCADE, related_name="steps")
    step = models.CharField(max_length=40)
    position = models.IntegerField(help_text=_("Order within the dump, from 0"))
    step_time_ns = models.BigIntegerField(null=True)
    computing_ns = models.BigIntegerField(null=True)
    communication_ns = models.BigIntegerField(null=True)
    communication_not_overlapped_ns = models.BigIntegerField(null=True)
    overlapped_ns = models.BigIntegerField(null=True)
    free_ns = models.BigIntegerField(null=True)
    bubble_ns = models.BigIntegerField(null=True)
    preparing_ns = models.BigIntegerField(null=True)
    source = models.CharField(max_length=60, blank=True)
    warmup = models.BooleanField(default=False)

    class Meta:
        ordering = ["dump", "position"]
        constraints = [models.UniqueConstraint(fields=["dump", "position"], name="one_row_per_step")]


class ItemStatus(models.TextChoices):
    PASS = "pass", _("Pass")
    FAIL = "fail", _("Fail")
    UNKNOWN = "unknown", _("Unknown")


class ChecklistResult(models.Model):
    """One checklist item of one capture; the text and evidence stay in the capture's report."""

    capture = models.ForeignKey(Capture, models.CASCADE, related_name="checklist")
    run = models.ForeignKey(Run, models.CASCADE, related_name="checklist")
    item = models.CharField(max_length=40)
    status = models.CharField(max_length=10, choices=ItemStatus.choices)
    value = models.FloatField(null=True)
    threshold = models.FloatField(null=True)
    summary = models.TextField(blank=True)
    summary_zh = models.TextField(blank=True)
    recoverable_ns = models.BigIntegerField(null=True)
    latest = models.BooleanField(
        default=False, help_text=_("Of the run's newest ready capture: what violations are open")
    )
    # recoverable_ns x cards x steps run; of the latest alone. A large job's passes 64 bits.
    lost_ns = models.FloatField(null=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["capture", "item"], name="one_result_per_item")]
        indexes = [
            models.Index(fields=["item", "status"], condition=Q(latest=True), name="open_results"),
            models.Index(
                F("lost_ns").desc(nulls_last=True),
                F("id").desc(),
                include=["run", "item"],
                condition=Q(latest=True, status="fail"),
                name="open_violations",
            ),
        ]


class Waiver(models.Model):
    """A violation that someone answers for, until it expires."""

    run = models.ForeignKey(Run, models.CASCADE, related_name="waivers")
    item = models.CharField(max_length=40)
    owner = models.ForeignKey(User, models.PROTECT)
    given_by = models.ForeignKey(User, models.SET_NULL, null=True, related_name="+")
    reason = models.TextField()
    expires = models.DateField()
    every_run = models.BooleanField(
        default=False, help_text=_("Of every run of the same model in the project, later ones too")
    )
    created = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["run", "item"], name="one_waiver_per_item")]


class Assignment(models.Model):
    """A violation that someone is asked to fix; it stays open meanwhile."""

    run = models.ForeignKey(Run, models.CASCADE, related_name="assignments")
    item = models.CharField(max_length=40)
    owner = models.ForeignKey(User, models.CASCADE, related_name="+")
    given_by = models.ForeignKey(User, models.SET_NULL, null=True, related_name="+")
    created = models.DateTimeField(auto_now=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["run", "item"], name="one_owner_per_item")]


class StepRecord(models.Model):
    """What the training log or the callback said of one step."""

    run = models.ForeignKey(Run, models.CASCADE, related_name="steps")
    step = models.BigIntegerField()
    loss = models.FloatField(null=True)
    lr = models.FloatField(null=True)
    global_norm = models.FloatField(null=True)
    step_time_ns = models.BigIntegerField(null=True)
    tflops_per_device = models.FloatField(null=True)
    loss_scale = models.FloatField(null=True)
    overflow = models.BooleanField(null=True)
    source = models.CharField(max_length=10, blank=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["run", "step"], name="one_record_per_step")]


SUMMED_FIELDS = ("loss", "global_norm", "step_time_ns", "tflops_per_device", "lr")
"""Of a step record: what charts by step show."""


class StepSums(models.Model):
    """Sums and counts of the values of up to `STEPS` step records: charts of long runs are means of these."""

    STEPS = 20

    run = models.ForeignKey(Run, models.CASCADE, related_name="step_sums", db_index=False)
    block = models.BigIntegerField()  # step // STEPS
    first_step = models.BigIntegerField()  # that has a record
    loss_sum = models.FloatField(null=True)
    loss_count = models.SmallIntegerField()
    global_norm_sum = models.FloatField(null=True)
    global_norm_count = models.SmallIntegerField()
    step_time_ns_sum = models.FloatField(null=True)
    step_time_ns_count = models.SmallIntegerField()
    tflops_per_device_sum = models.FloatField(null=True)
    tflops_per_device_count = models.SmallIntegerField()
    lr_sum = models.FloatField(null=True)
    lr_count = models.SmallIntegerField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["run", "block"], name="one_sum_per_block")]


class SavedView(models.Model):
    """A person's name for the filters, order and columns of a project's run list."""

    project = models.ForeignKey(Project, models.CASCADE, related_name="saved_views")
    user = models.ForeignKey(User, models.CASCADE, related_name="saved_views")
    name = models.CharField(max_length=60)
    query = models.CharField(max_length=2000, blank=True, help_text=_("Parameters of the run list's address"))
    created = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["project", "user", "name"], name="one_view_per_name")]

    def __str__(self) -> str:
        return self.name
