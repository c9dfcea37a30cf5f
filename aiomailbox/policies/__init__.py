"""How calls are repeated, limited, remembered and grouped: plain arithmetic."""
