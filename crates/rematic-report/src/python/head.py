"""Makes a PyTorch model follow a plan of Rematic, with torch alone.

    apply_plan(model)  # once, before training; the training loop stays as it is

The plan is for one model with one shape of inputs on one kind of device. The modules in PLAN are checkpointed: what
their forward makes is dropped and made again in backward, except for what their policy saves. Whenever such a module
runs, its operators are compared with the plan, and PlanMismatch names the first that differs.
"""
