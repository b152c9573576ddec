def run_all(binary, logs):
    return []
