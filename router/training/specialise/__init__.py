"""`draftpick specialise`: from what users ask to drafters that know it, and a policy that picks
among them."""
