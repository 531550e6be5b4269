"""The applications of the papers at their sizes: training and inference, beside PyTorch on the same device.

python -m benchmarks.applications compile BUILDS --target cuda:sm_90a
python -m benchmarks.applications run BUILDS --trees SST.jsonl --parts ... --out FOLDER
python -m benchmarks.applications table FOLDER/*.json
"""
