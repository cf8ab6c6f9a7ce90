"""The child process of `client: native`: only it loads librocketmq, which may crash or hang."""
