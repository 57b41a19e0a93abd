# NOT BUILT: Docker was not available.
#   docker build -f examples/serve/grpc.Dockerfile -t electra-grpc .   (from the checkout)
#   docker run -p 8500:8500 -v $PWD/runs/cola/saved_model:/model:ro electra-grpc
FROM python:3.11-slim
WORKDIR /app
RUN pip install --no-cache-dir "tensorflow>=2.21,<2.22" "tensorflow-text>=2.21.1,<2.22" "grpcio>=1.70" \
    && pip install --no-cache-dir --no-deps "tensorflow-serving-api>=2.21,<2.22"
COPY examples/serve/grpc_server.py .
ENV TF_CPP_MIN_LOG_LEVEL=3
USER nobody
EXPOSE 8500
CMD ["python", "grpc_server.py", "--model=model=/model", "--port=8500"]
