"""Commands on stored data: at the broker, in the state folder and in a changelog."""
