"""Earlier requests' answers, to draft from, and what was read of their prompts."""
