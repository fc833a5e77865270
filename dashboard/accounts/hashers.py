"""Passwords hashed by Argon2id, through the library that single sign-on brings along."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cryptography.exceptions import InvalidKey
from cryptography.hazmat.primitives.kdf.argon2 import Argon2id
from django.contrib.auth.hashers import BasePasswordHasher, mask_hash

if TYPE_CHECKING:
    from django.utils.functional import _StrPromise as StrPromise


class Argon2PasswordHasher(BasePasswordHasher):
    """Stores what Django's own Argon2 hasher stores, `argon2$argon2id$v=19$m=19456,t=2,p=1$salt$hash`.

    The cost is what OWASP names as equal to 600 000 rounds of PBKDF2: 19 MiB of memory, which is what makes guessing
    dear, and a seventh of the processor time of Django's million rounds.
    """

    algorithm = "argon2"
    memory_kib = 19_456
    rounds = 2
    lanes = 1
    bytes = 32

    def encode(self, password: str, salt: str) -> str:
        kind = Argon2id(
            salt=salt.encode(), length=self.bytes, iterations=self.rounds, lanes=self.lanes, memory_cost=self.memory_kib
        )
        return self.algorithm + kind.derive_phc_encoded(password.encode())

    def verify(self, password: str, encoded: str) -> bool:
        try:
            Argon2id.verify_phc_encoded(password.encode(), encoded.removeprefix(self.algorithm))
        except InvalidKey:
            return False
        return True

    def must_update(self, encoded: str) -> bool:
        """Whether it was made at another cost."""
        return not encoded.startswith(f"{self.algorithm}$argon2id$v=19${self._cost()}$")

    def harden_runtime(self, password: str, encoded: str) -> None:
        """Nothing: the time of another cost cannot be made up for."""

    def decode(self, encoded: str) -> dict[str, Any]:
        _algorithm, kind, version, cost, salt, found = encoded.split("$")
        return {"algorithm": kind, "version": version, "cost": cost, "salt": salt, "hash": found}

    def safe_summary(self, encoded: str) -> dict[str | StrPromise, Any]:
        told = self.decode(encoded)
        # the page translates the keys, which are those of Django's own hasher
        return {"algorithm": told["algorithm"], "memory cost": told["cost"], "salt": mask_hash(told["salt"])}

    def _cost(self) -> str:
        return f"m={self.memory_kib},t={self.rounds},p={self.lanes}"
