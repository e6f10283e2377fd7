{{- define "gpuslice.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- define "gpuslice.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- else }}
{{- $name := default .Chart.Name .Values.nameOverride }}
{{- if contains $name .Release.Name }}
{{- .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" }}
{{- end }}
{{- end }}
{{- end }}

{{- /* Called with (list . "component"). */ -}}
{{- define "gpuslice.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ include "gpuslice.name" $root }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "gpuslice.labels" -}}
{{- $root := index . 0 -}}
{{ include "gpuslice.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "gpuslice.image" -}}
{{ .Values.image.repository }}{{ with .Values.image.digest }}@{{ . }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{- /* v1.31.4 of v1.31.4-eks-2d5f260: the suffixes of managed clusters are not in the registry. */ -}}
{{- define "gpuslice.kubeSchedulerImage" -}}
{{- $image := .Values.scheduler.kubeScheduler.image -}}
{{ $image.repository }}{{ with $image.digest }}@{{ . }}{{ else }}:{{ $image.tag | default (regexFind "^v[0-9]+\\.[0-9]+\\.[0-9]+" .Capabilities.KubeVersion.Version) }}{{ end }}
{{- end }}

{{- define "gpuslice.tlsSecret" -}}
{{- if eq .Values.tls.mode "provided" -}}
{{ required "tls.mode provided needs tls.provided.secretName: a Secret with tls.crt and tls.key" .Values.tls.provided.secretName }}
{{- else -}}
{{ include "gpuslice.fullname" . }}-tls
{{- end }}
{{- end }}

{{- /* The names under which we are called, as a JSON list in `names`: they go into the certificate. */ -}}
{{- define "gpuslice.servedNames" -}}
{{- $names := list (printf "%s-webhook.%s.svc" (include "gpuslice.fullname" .) .Release.Namespace) -}}
{{- if eq .Values.scheduler.mode "extender" -}}
{{- $names = append $names (printf "%s-extender.%s.svc" (include "gpuslice.fullname" .) .Release.Namespace) -}}
{{- with .Values.scheduler.service.clusterIP -}}
{{- $names = append $names . -}}
{{- end -}}
{{- end -}}
{{- if .Values.webhook.url -}}
{{- $names = append $names ((urlParse .Values.webhook.url).hostname | trimPrefix "[" | trimSuffix "]") -}}
{{- end -}}
{{ dict "names" (concat $names .Values.tls.names | uniq) | toJson }}
{{- end }}

{{- define "gpuslice.apiServerEnv" -}}
{{- if .Values.k8sServiceHost }}
- name: KUBERNETES_SERVICE_HOST
  value: {{ .Values.k8sServiceHost | quote }}
{{- end }}
{{- if .Values.k8sServicePort }}
- name: KUBERNETES_SERVICE_PORT
  value: {{ .Values.k8sServicePort | quote }}
{{- end }}
{{- end }}

{{- /* Where a component's pods may run: called with (list . .Values.COMPONENT). */ -}}
{{- define "gpuslice.where" -}}
{{- $root := index . 0 -}}
{{- $values := index . 1 -}}
{{- with $root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- if $values.hostNetwork }}
hostNetwork: true
dnsPolicy: ClusterFirstWithHostNet
{{- end }}
{{- with $values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "gpuslice.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- /* Does the API server evaluate matchConditions (stable since 1.30)? */ -}}
{{- define "gpuslice.matchConditions" -}}
{{- if semverCompare ">=1.30.0-0" .Capabilities.KubeVersion.Version }}true{{ end }}
{{- end }}
