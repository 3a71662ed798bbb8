"""`cloze plan`: what `cloze run` would do, and why.

In:  a configuration.
Out: one line per stage; nothing is written or started.
"""

from cloze.answer import Answer
from cloze.options import WANTED, ConfigPath, Wanted
from flows.plan import PlannedStage
from flows.plan import plan as plan_run


def plan(config: ConfigPath, /, *, wanted: Wanted = WANTED) -> Answer:
    """What `cloze run` would reuse and what it would make, stage by stage."""
    stages = plan_run(wanted.run(config), workspace=wanted.space())
    data = {"stages": [stage.model_dump(mode="json") for stage in stages]}
    return Answer(data, "\n".join(_line(stage) for stage in stages), wanted.json)


def _line(stage: PlannedStage) -> str:
    why = stage.digest[:12] if stage.action == "reuse" else "; ".join(stage.reasons)
    return f"{stage.stage:<11} {stage.action:<6} {why}"
