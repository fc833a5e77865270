from __future__ import annotations


def apply_scopes(*a):
    return False
