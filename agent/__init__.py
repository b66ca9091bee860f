"""An SRE agent beside each vLLM server: evidence, cause, guarded repair, proof.

Importing this package loads nothing heavy; each stage is a package of its own and its ``__init__`` is its
only public face.
"""

__version__ = "0.1.0"
