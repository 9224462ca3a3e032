"""The engines behind the techniques.

A file of `act/techniques/` says what a technique is, when it applies and which engine it uses. A
file here does the work: it runs a forward twice (`rerun`), copies to the host (`offload_link`),
steps an optimizer in parts (`optimizer_parts`), joins ranks (`rank_groups`) and so on. Engines may
use each other. Techniques do not import each other: what two of them need is here.
"""
