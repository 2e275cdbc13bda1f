"""How fast the pipeline's sources are, beside their ceilings and peers of the same run."""
