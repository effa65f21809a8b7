

class PlanMismatch(RuntimeError):
    """The model does not do what the plan was made for."""


PlanError = PlanMismatch
