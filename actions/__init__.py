"""What a user can ask for, one file an action: ``run(config, console) -> exit code``.

An action builds the frozen values it needs (domain.py), calls sailor and provision, and shows the
outcome. Actions are imported when asked for, so that one that needs torch costs the others nothing.
"""

from __future__ import annotations

ACTIONS: dict[str, str] = {
    "train": "train; the same command again resumes, or says that it is done (default)",
    "plan": "show the plans for this model and cloud; rents nothing, needs no account",
    "profile": "time the model's parts and this computer's links, for planner.profile=FILE",
    "simulate": "what becomes of the plan when machines vanish: goodput, cost and chances",
    "prepare": "turn the text into tokens; training does it too",
    "eval": "held-out loss, bits per byte and continued texts of a run's checkpoint or a model",
    "export": "write a run's checkpoint as a Hugging Face folder or a torch DCP",
    "check": "what a run here or on a cloud lacks, or (run.name=) whether its checkpoint is whole",
    "web": "show a run (run.name=), going on or ended, as a page in the browser, until Ctrl-C",
    "report": "draw a run's report again, from its log",
    "status": "what the run folders hold",
    "recipe": "do the steps of recipe=NAME, the default where one is named; again: what is left",
    "recipe.list": "the recipes there are, with what they take and cost",
    "recipe.copy": "a recipe of your own that starts as another: name=NAME to=NEW_NAME",
    "recipe.header": "plan recipe=NAME (or all) and write what it takes, and measured, above it",
    "migrate": "have a machine of a run that goes on (run=NAME node=NODE) hand over to another one",
    "debug.bundle": "pack what is needed to find a mistake (run=NAME): no secrets, sent nowhere",
    "watch": "show a run that goes on, or how it went (run=NAME); closing it leaves the run alone",
    "down": "end what a run (run.name=), or every run (run.all=true), left rented",
}
"""Name -> what it does. ``actions/<name>.py`` has its ``run(config: Config, console: Console)``."""

COMPOSING = ("recipe", "recipe.status", "recipe.header")
"""Actions whose run also takes ``compose``, for configurations of other command lines."""
