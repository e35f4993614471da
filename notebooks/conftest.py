"""`pytest --nbmake notebooks` runs every notebook anew; here it is told to compile cheaply."""

import os

# Most of the time goes into compiling programs that run once, and two notebooks run side by side: see tests/conftest.py.
# Kernels inherit the environment. What stands in XLA_FLAGS already comes last, and wins.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ["XLA_FLAGS"] = (
    "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1 "
    "--xla_llvm_disable_expensive_passes=true --xla_cpu_enable_concurrency_optimized_scheduler=false "
    + os.environ.get("XLA_FLAGS", "")
).strip()
