"""How often the state is saved to each tier: asked for by people, or chosen from what is measured."""
