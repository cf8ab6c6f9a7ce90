"""Commands about what a broker, the state folder and a changelog have stored."""
