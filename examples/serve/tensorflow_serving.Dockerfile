# NOT BUILT: Docker and TensorFlow Serving were not available.
#   docker build -f examples/serve/tensorflow_serving.Dockerfile -t electra-tfs runs/cola
#   docker run -p 8500:8500 -p 8501:8501 electra-tfs
FROM tensorflow/serving:2.19.1
COPY saved_model /models/cola/1
ENV MODEL_NAME=cola
