"""Seeded tensors for a case: values by distribution, masks by pattern, or captured from a file."""
