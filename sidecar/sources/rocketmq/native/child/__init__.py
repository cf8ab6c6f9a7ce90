"""The child process of `client: native`: librocketmq, which may crash or hang, is loaded there alone."""
