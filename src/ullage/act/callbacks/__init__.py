"""Recording and guarding in the frameworks that own the training loop: one file for each framework.

    from ullage.act.callbacks.transformers import GuardMemory, RecordMemory
    trainer.add_callback(RecordMemory("run.pickle"))
    trainer.add_callback(GuardMemory(trainer))

Nothing here is imported by ullage itself; each file imports its framework and no other. What a
training comes to does not depend on its recording: where that fails, one line on stderr says so.
"""
