"""The step of an optimizer, and the update of averages, finished after an error."""
