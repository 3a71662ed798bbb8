"""The command `cloze` with stand-ins (standin.py) for all stages, which takes seconds.

python -P -m tests.flows.standin_cloze run CONFIG --workspace FOLDER
"""

from cloze.command import main
from cloze.flows.config import ReportStage
from cloze.model.config import EvaluateStage, FinetuneStage, PretrainStage
from cloze.pipeline.config.settings import ExamplesStage, LabelsStage, TokensStage, VocabularyStage

STAGES = (
    VocabularyStage,
    TokensStage,
    ExamplesStage,
    LabelsStage,
    PretrainStage,
    FinetuneStage,
    EvaluateStage,
    ReportStage,
)

if __name__ == "__main__":
    for stage in STAGES:
        stage.program = "tests.flows.standin"
    main()
