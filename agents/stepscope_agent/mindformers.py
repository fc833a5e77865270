"""Makes StepscopeCallback known to MindSpore Transformers, so that a YAML file can name it among its `callbacks`.

One line at the top of run_mindformer.py does: `import stepscope_agent.mindformers  # noqa: F401`
"""

from __future__ import annotations

from mindformers.tools.register import MindFormerModuleType, MindFormerRegister  # type: ignore[import-not-found]

from stepscope_agent.mindspore import StepscopeCallback

MindFormerRegister.register_cls(StepscopeCallback, MindFormerModuleType.CALLBACK)
