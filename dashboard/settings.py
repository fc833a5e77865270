"""One settings file, driven by the environment (see deploy/.env.example)."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

import environ
from kombu import Queue

from dashboard.env import env_bool, env_int, env_list, env_secret, env_str
from dashboard.services import kept_postgres

BASE_DIR = Path(__file__).resolve().parent.parent
DATA_ROOT = Path(env_str("STEPSCOPE_DATA", str(BASE_DIR / "var"))).resolve()

DEBUG = env_bool("STEPSCOPE_DEBUG", False)
SECRET_KEY = env_secret("SECRET_KEY", "insecure-only-for-commands-that-serve-nobody")
ALLOWED_HOSTS = env_list("STEPSCOPE_HOSTS", "127.0.0.1,localhost")
CSRF_TRUSTED_ORIGINS = env_list("STEPSCOPE_ORIGINS")
SITE_URL = env_str("STEPSCOPE_URL", "http://127.0.0.1:8000").rstrip("/")
HTTPS = SITE_URL.startswith("https://")

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.humanize",
    "django.contrib.postgres",
    "whitenoise.runserver_nostatic",
    "dashboard.apps.StaticFilesConfig",
    "allauth",
    "allauth.account",
    "allauth.socialaccount",
    "allauth.socialaccount.providers.openid_connect",
    "allauth.usersessions",
    "axes",
    "django_htmx",
    "dashboard.accounts",
    "dashboard.runs",
    "dashboard.ingest",
    "dashboard.hosts",
    "dashboard.alerts",
    "dashboard.demo",
]

MIDDLEWARE = [
    "dashboard.ingest.places.StalledSendersMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "dashboard.addresses.RefuseNulMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "dashboard.compression.PackTextMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "allauth.account.middleware.AccountMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "dashboard.csp.ContentSecurityPolicyMiddleware",
    "axes.middleware.AxesMiddleware",
]

ROOT_URLCONF = "dashboard.urls"
WSGI_APPLICATION = "dashboard.wsgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.template.context_processors.i18n",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "dashboard.runs.context.shell",
            ]
        },
    }
]

# Without an address: that of `manage.py up`, for commands given beside it.
_database = environ.Env.db_url_config(
    env_secret("DATABASE_URL") or kept_postgres(DATA_ROOT) or "postgres://stepscope@127.0.0.1:5432/stepscope"
)
_database["HOST"] = unquote(_database["HOST"])  # a Unix socket folder travels percent-encoded
DATABASES = {"default": {**_database, "CONN_MAX_AGE": 60, "CONN_HEALTH_CHECKS": True}}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

REDIS_URL = env_secret("REDIS_URL", "redis://127.0.0.1:6379/0")
CACHES = {"default": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": REDIS_URL}}

CELERY_BROKER_URL = REDIS_URL
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_TRANSPORT_OPTIONS = {"visibility_timeout": 3600, "socket_timeout": 5, "socket_connect_timeout": 5}
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_ACKS_LATE = True
CELERY_TASK_REJECT_ON_WORKER_LOST = True
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_TIMEZONE = "UTC"
# A worker without -Q serves both; digests wait in their own queue, so that many of them do not hold up the rest.
CELERY_TASK_QUEUES = [Queue("celery"), Queue("digest")]
CELERY_TASK_ROUTES = {
    "dashboard.ingest.tasks.digest_dump": {"queue": "digest"},
    "dashboard.ingest.tasks.unpack_archive": {"queue": "digest"},
}
SWEEP_SECONDS = env_int("STEPSCOPE_SWEEP_SECONDS", 15)
JUDGE_AFTER_SECONDS = env_int("STEPSCOPE_JUDGE_AFTER_SECONDS", 120)
HEARTBEAT_SECONDS = env_int("STEPSCOPE_HEARTBEAT_SECONDS", 30)
CELERY_BEAT_SCHEDULE = {
    "rollup-due-captures": {
        "task": "dashboard.ingest.tasks.rollup_due_captures",
        "schedule": 5.0,
        "options": {"expires": 10},  # while no worker is there, they must not pile up
    },
    "sweep-stuck-dumps": {
        "task": "dashboard.ingest.tasks.sweep_stuck_dumps",
        "schedule": float(SWEEP_SECONDS),
        "options": {"expires": 2 * SWEEP_SECONDS},
    },
    "sweep-old-uploads": {"task": "dashboard.ingest.tasks.sweep_old_uploads", "schedule": 3600.0},
    "expire-capture-requests": {
        "task": "dashboard.hosts.tasks.expire_requests",
        "schedule": 60.0,
        "options": {"expires": 120},
    },
    "deliver-due-notices": {"task": "dashboard.alerts.tasks.deliver_due_notices", "schedule": 30.0},
    "queue-weekly-digests": {
        "task": "dashboard.alerts.tasks.queue_weekly_digests",
        "schedule": float(SWEEP_SECONDS),
        "options": {"expires": 2 * SWEEP_SECONDS},
    },
    "forget-old-deliveries": {"task": "dashboard.alerts.tasks.forget_old_deliveries", "schedule": 3600.0},
}

AUTH_USER_MODEL = "accounts.User"
AUTHENTICATION_BACKENDS = [
    "axes.backends.AxesStandaloneBackend",
    "dashboard.accounts.sign_in.PasswordBackend",
]
# The first makes hashes, the second takes those made before; who signs in with one gets a new one.
PASSWORD_HASHERS = [
    "dashboard.accounts.hashers.Argon2PasswordHasher",
    "django.contrib.auth.hashers.PBKDF2PasswordHasher",
]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 10}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
LOGIN_URL = "account_login"
LOGIN_REDIRECT_URL = "/"
ACCOUNT_LOGIN_METHODS = {"username", "email"}
ACCOUNT_FORMS = {"login": "dashboard.accounts.sign_in_form.SignInForm"}
ACCOUNT_ADAPTER = "dashboard.accounts.adapter.AccountAdapter"
ACCOUNT_DEFAULT_HTTP_PROTOCOL = "https" if HTTPS else "http"
STEPSCOPE_SIGNUP = env_bool("STEPSCOPE_SIGNUP", False)
SIGNUP_DOMAINS = [domain.lower() for domain in env_list("STEPSCOPE_SIGNUP_DOMAINS")]
ACCOUNT_SIGNUP_FIELDS = ["username*", "email*" if SIGNUP_DOMAINS else "email", "password1*", "password2*"]
ACCOUNT_EMAIL_VERIFICATION = "mandatory" if SIGNUP_DOMAINS else "none"
BEHIND_PROXY = env_bool("STEPSCOPE_BEHIND_PROXY", False)

# Guessing: one name, one name from one address, and many names from one address.
LOGIN_FAILURES = env_int("STEPSCOPE_LOGIN_FAILURES", 8)
ADDRESS_LOGIN_FAILURES = env_int("STEPSCOPE_ADDRESS_LOGIN_FAILURES", 50)
AXES_FAILURE_LIMIT = LOGIN_FAILURES
AXES_COOLOFF_TIME = 0.5  # hours
AXES_LOCKOUT_PARAMETERS = [["username", "ip_address"]]
AXES_CLIENT_IP_CALLABLE = "dashboard.accounts.adapter.client_ip"
AXES_VERBOSE = False
AXES_LOCKOUT_TEMPLATE = "account/locked.html"
AXES_USERNAME_CALLABLE = "dashboard.accounts.sign_in.name_of"
# Counted in dashboard.accounts.sign_in: allauth refuses who waits a second for its lock, as people do who come at once.
ACCOUNT_RATE_LIMITS = {"login": None, "login_failed": None}

# Single sign-on by OpenID Connect; off without an issuer.
OIDC_ISSUER = env_str("STEPSCOPE_OIDC_ISSUER").rstrip("/")
OIDC_DOMAINS = [domain.lower() for domain in env_list("STEPSCOPE_OIDC_DOMAINS")]
OIDC_GROUPS = env_list("STEPSCOPE_OIDC_GROUPS")
OIDC_GROUPS_CLAIM = env_str("STEPSCOPE_OIDC_GROUPS_CLAIM", "groups")
OIDC_APP = {
    "provider_id": "sso",
    "name": env_str("STEPSCOPE_OIDC_NAME", "Single sign-on"),
    "client_id": env_str("STEPSCOPE_OIDC_CLIENT_ID"),
    "secret": env_secret("STEPSCOPE_OIDC_CLIENT_SECRET"),
    "settings": {"server_url": OIDC_ISSUER, "oauth_pkce_enabled": True},
}
SOCIALACCOUNT_PROVIDERS = {
    "openid_connect": {
        "APPS": [OIDC_APP] if OIDC_ISSUER else [],
        "SCOPE": env_list("STEPSCOPE_OIDC_SCOPES", "openid,profile,email"),
    }
}
SOCIALACCOUNT_ADAPTER = "dashboard.accounts.adapter.SocialAccountAdapter"
SOCIALACCOUNT_STORE_TOKENS = False

_mail = environ.Env.email_url_config(env_secret("STEPSCOPE_EMAIL_URL", "dummymail://"))
EMAIL_BACKEND, EMAIL_HOST, EMAIL_PORT = _mail["EMAIL_BACKEND"], _mail["EMAIL_HOST"], _mail["EMAIL_PORT"]
EMAIL_HOST_USER, EMAIL_HOST_PASSWORD = _mail["EMAIL_HOST_USER"], _mail["EMAIL_HOST_PASSWORD"]
EMAIL_USE_TLS, EMAIL_USE_SSL = _mail.get("EMAIL_USE_TLS", False), _mail.get("EMAIL_USE_SSL", False)
EMAIL_TIMEOUT = 20
SENDS_MAIL = not EMAIL_BACKEND.endswith("dummy.EmailBackend")
DEFAULT_FROM_EMAIL = SERVER_EMAIL = env_str("STEPSCOPE_EMAIL_FROM", "stepscope@localhost")

LANGUAGE_CODE = "en"
LANGUAGES = [("en", "English"), ("zh-hans", "简体中文")]
LOCALE_PATHS = [BASE_DIR / "dashboard" / "locale"]
TIME_ZONE = env_str("STEPSCOPE_TIME_ZONE", "UTC")
USE_TZ = True
FORMAT_MODULE_PATH = ["dashboard.formats"]

STATIC_URL = "/static/"
STATIC_ROOT = DATA_ROOT / "static"
STATICFILES_DIRS = [
    BASE_DIR / "dashboard" / "static",
    ("vendor/echarts", BASE_DIR / "node_modules" / "echarts" / "dist"),
]
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "dashboard.static_files.StaticFiles"},
}

SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = HTTPS
SESSION_COOKIE_HTTPONLY = True
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if BEHIND_PROXY else None
SECURE_HSTS_SECONDS = 31_536_000 if HTTPS else 0
# Other names of the domain are not ours to speak for, and the proxy redirects: probes inside come by plain HTTP.
SILENCED_SYSTEM_CHECKS = ["security.W005", "security.W008", "security.W021"]
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"

# Limits of what is taken in. Each refusal names its number.
MAX_FILE_BYTES = env_int("STEPSCOPE_MAX_FILE_BYTES", 5 * 1024**3)
MAX_DUMP_BYTES = env_int("STEPSCOPE_MAX_DUMP_BYTES", 20 * 1024**3)
MAX_DUMP_FILES = env_int("STEPSCOPE_MAX_DUMP_FILES", 500)
MAX_PROJECT_BYTES = env_int("STEPSCOPE_MAX_PROJECT_BYTES", 500 * 1024**3)
MIN_FREE_BYTES = env_int("STEPSCOPE_MIN_FREE_BYTES", 256 * 1024**2)
WEB_THREADS = env_int("STEPSCOPE_WEB_THREADS", 8)
DATA_UPLOAD_MAX_MEMORY_SIZE = 8 * 1024**2
DATA_UPLOAD_MAX_NUMBER_FIELDS = 20_000  # a change of many runs names each of them
MAX_CONFIG_BYTES = 1024**2
MAX_META_BYTES = 2 * 1024**2
CALLS_PER_MINUTE = env_int("STEPSCOPE_CALLS_PER_MINUTE", 6000)

DIGEST_MEMORY_BYTES = env_int("STEPSCOPE_DIGEST_MEMORY_BYTES", 6 * 1024**3)
DIGEST_SECONDS = env_int("STEPSCOPE_DIGEST_SECONDS", 900)
DIGEST_ATTEMPTS = 10  # ends of workers, which are seldom its fault: what was sent is read in a child process
KEEP_UPLOADS_DAYS = env_int("STEPSCOPE_KEEP_UPLOADS_DAYS", 30)
KEEP_KERNELS_DAYS = env_int("STEPSCOPE_KEEP_KERNELS_DAYS", 180)
KEEP_CAPTURES_DAYS = env_int("STEPSCOPE_KEEP_CAPTURES_DAYS", 0)
KEEP_DELIVERIES_DAYS = env_int("STEPSCOPE_KEEP_DELIVERIES_DAYS", 90)
NOTICE_LOOPBACK_ALLOWED = env_bool("STEPSCOPE_NOTICE_LOOPBACK_ALLOWED", False)

METRICS_TOKEN = env_secret("STEPSCOPE_METRICS_TOKEN")
METRICS_LOCAL = env_bool("STEPSCOPE_METRICS_LOCAL", False)

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"plain": {"format": "{asctime} {levelname} {name} {message}", "style": "{"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "plain"}},
    "root": {"handlers": ["console"], "level": env_str("STEPSCOPE_LOG_LEVEL", "INFO")},
}
