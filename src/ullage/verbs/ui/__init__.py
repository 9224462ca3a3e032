"""A local web page: the calculator, the GPU's memory, snapshots; what `ullage ui` opens."""
