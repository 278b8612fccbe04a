"""The builtin trainer. `rollcall` has its public names."""
