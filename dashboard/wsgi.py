from __future__ import annotations

import os

from django.core.exceptions import ImproperlyConfigured
from django.core.wsgi import get_wsgi_application

from dashboard import warm
from dashboard.env import env_secret

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dashboard.settings")
if not env_secret("SECRET_KEY"):
    raise ImproperlyConfigured("SECRET_KEY is not set: sessions signed with a known key protect nobody")

application = get_wsgi_application()
warming = warm.start()  # in each worker of its own: gunicorn never preloads
