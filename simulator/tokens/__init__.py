"""Token adaptation simulated: one body at several token counts, and which one each batch gets."""
