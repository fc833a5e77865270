"""The way of MindSpore Transformers: `callbacks` of a YAML file, by a stand-in for its registry."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

from stepscope_agent.mindspore import StepscopeCallback


class Registry:
    known = {}

    @classmethod
    def register_cls(cls, register_class, module_type="tools", alias=None):
        cls.known[module_type, alias or register_class.__name__] = register_class
        return register_class


def test_the_name_in_the_yaml_makes_a_callback_with_its_options(monkeypatch, tmp_path):
    register = ModuleType("mindformers.tools.register")
    register.MindFormerRegister = Registry
    register.MindFormerModuleType = type("MindFormerModuleType", (), {"CALLBACK": "callback"})
    for name in ("mindformers", "mindformers.tools"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "mindformers.tools.register", register)
    importlib.import_module("stepscope_agent.mindformers")
    row = {"type": "StepscopeCallback", "output": str(tmp_path), "first_step": 100, "steps": 3, "every": 1000}
    made = Registry.known["callback", row.pop("type")](**row)
    assert isinstance(made, StepscopeCallback)
    assert (made.first_step, made.steps, made.every) == (100, 3, 1000)
