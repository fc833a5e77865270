"""How passwords are hashed."""

from __future__ import annotations

from django.contrib.auth import hashers


class Argon2PasswordHasher(hashers.Argon2PasswordHasher):
    """Django's, at the cost that OWASP names as equal to 600 000 rounds of PBKDF2: 19 MiB of memory, which is what
    makes guessing dear. Django's own 100 MiB for each who signs in at once would be dear for the server too."""

    memory_cost = 19_456  # KiB
    time_cost = 2
    parallelism = 1
