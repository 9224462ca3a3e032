"""The parts between a loader of batches and the step that uses them."""
