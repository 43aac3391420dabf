"""Where autorecall meets other libraries; each is imported only when it is used."""
